# ruff: noqa: F403
from mle_star.api import Model as Model
from mle_star.api import Run as Run
from mle_star.api import fit as fit
from mle_star.api import load_model as load_model
from mle_star.config import load_config as load_config
from mle_star.data.folder import load_task as load_task
from mle_star.errors import *
from mle_star.models import *
from mle_star.orchestrator import PipelineState as PipelineState
from mle_star.orchestrator import run_pipeline as run_pipeline
from mle_star.orchestrator import run_pipeline_sync as run_pipeline_sync
from mle_star.prompts import PromptRegistry as PromptRegistry

__all__: list[str]
__version__: str
