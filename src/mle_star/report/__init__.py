"""What people see of a run: its story, the report, the live page."""

from mle_star.report.page import write_report
from mle_star.report.story import RunStory

__all__ = ["RunStory", "write_report"]
