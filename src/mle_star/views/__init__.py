"""What people see of a run: its story, the report, the live page."""

from mle_star.views.page import write_report
from mle_star.views.story import RunStory

__all__ = ["RunStory", "write_report"]
