"""The harness: runs generated scripts, confined, and scores what they leave behind. The only door to `subprocess`."""

from mle_star.execution.environment import build_execution_env, script_environment, scrub_credentials
from mle_star.execution.gpu import detect_gpu, detect_gpu_info
from mle_star.execution.harness import (
    ExecutorStrategy,
    evaluate_batch,
    evaluate_solution,
    evaluate_with_retry,
    execute_script,
    execute_script_via_sdk,
    make_score_function,
)
from mle_star.execution.limits import MAX_OUTPUT_BYTES, Limits
from mle_star.execution.local import LocalExecutor
from mle_star.execution.outcome import (
    build_evaluation_result,
    debug_text,
    detect_error,
    exception_line,
    extract_traceback,
    trim_traceback,
)
from mle_star.execution.own_metric import OwnMetric as OwnMetric  # how metrics of the user's own are run
from mle_star.execution.programs import InterpreterInfo, inspect_interpreter
from mle_star.execution.recorded import execute_in_run
from mle_star.execution.submission import (
    check_submission_format,
    find_sample_submission,
    get_submission_info,
    verify_submission,
)
from mle_star.execution.subsample import (
    SUBSAMPLE_INSTRUCTION,
    detect_error_masking,
    get_subsample_instruction,
    request_subsample_extraction,
    request_subsample_removal,
)
from mle_star.execution.workspace import (
    clean_output_directory,
    link_input_data,
    prepare_path_directory,
    setup_working_directory,
    write_script,
)
from mle_star.method.scores import is_better_solution, parse_score, rank_solutions
from mle_star.models import ExecutionRawResult

__all__ = [
    "MAX_OUTPUT_BYTES",
    "SUBSAMPLE_INSTRUCTION",
    "ExecutionRawResult",
    "ExecutorStrategy",
    "InterpreterInfo",
    "Limits",
    "LocalExecutor",
    "build_evaluation_result",
    "build_execution_env",
    "check_submission_format",
    "clean_output_directory",
    "debug_text",
    "detect_error",
    "detect_error_masking",
    "detect_gpu",
    "detect_gpu_info",
    "evaluate_batch",
    "evaluate_solution",
    "evaluate_with_retry",
    "exception_line",
    "execute_in_run",
    "execute_script",
    "execute_script_via_sdk",
    "extract_traceback",
    "find_sample_submission",
    "get_submission_info",
    "get_subsample_instruction",
    "inspect_interpreter",
    "is_better_solution",
    "link_input_data",
    "make_score_function",
    "parse_score",
    "prepare_path_directory",
    "rank_solutions",
    "request_subsample_extraction",
    "request_subsample_removal",
    "script_environment",
    "scrub_credentials",
    "setup_working_directory",
    "trim_traceback",
    "verify_submission",
    "write_script",
]
