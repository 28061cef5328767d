"""The harness: runs generated scripts, confined, and scores their results. No other room uses `subprocess`.

Larger than planned: work is kept from script to script, and scripts are ranked on fewer views.
"""

from mle_star.execution.environment import build_execution_env as build_execution_env
from mle_star.execution.environment import detect_gpu as detect_gpu
from mle_star.execution.environment import detect_gpu_info as detect_gpu_info
from mle_star.execution.environment import inspect_interpreter as inspect_interpreter
from mle_star.execution.environment import scrub_credentials as scrub_credentials
from mle_star.execution.harness import ExecutorStrategy as ExecutorStrategy
from mle_star.execution.harness import detect_error_masking as detect_error_masking
from mle_star.execution.harness import evaluate_batch as evaluate_batch
from mle_star.execution.harness import evaluate_solution as evaluate_solution
from mle_star.execution.harness import evaluate_with_retry as evaluate_with_retry
from mle_star.execution.harness import execute_script as execute_script
from mle_star.execution.harness import execute_script_via_sdk as execute_script_via_sdk
from mle_star.execution.harness import get_subsample_instruction as get_subsample_instruction
from mle_star.execution.harness import make_score_function as make_score_function
from mle_star.execution.harness import request_subsample_extraction as request_subsample_extraction
from mle_star.execution.harness import request_subsample_removal as request_subsample_removal
from mle_star.execution.limits import Limits as Limits
from mle_star.execution.local import LocalExecutor as LocalExecutor
from mle_star.execution.outcome import build_evaluation_result as build_evaluation_result
from mle_star.execution.outcome import debug_text as debug_text
from mle_star.execution.outcome import detect_error as detect_error
from mle_star.execution.outcome import exception_line as exception_line
from mle_star.execution.outcome import extract_traceback as extract_traceback
from mle_star.execution.own_metric import OwnMetric as OwnMetric
from mle_star.execution.submission import check_submission_format as check_submission_format
from mle_star.execution.submission import find_sample_submission as find_sample_submission
from mle_star.execution.submission import get_submission_info as get_submission_info
from mle_star.execution.submission import verify_submission as verify_submission
from mle_star.execution.workspace import clean_output_directory as clean_output_directory
from mle_star.execution.workspace import link_input_data as link_input_data
from mle_star.execution.workspace import prepare_path_directory as prepare_path_directory
from mle_star.execution.workspace import setup_working_directory as setup_working_directory
from mle_star.execution.workspace import write_script as write_script
from mle_star.method.scores import is_better_solution as is_better_solution
from mle_star.method.scores import parse_score as parse_score
from mle_star.method.scores import rank_solutions as rank_solutions
from mle_star.models import ExecutionRawResult as ExecutionRawResult
from mle_star.prompts import SUBSAMPLE_INSTRUCTION as SUBSAMPLE_INSTRUCTION
