"""Two tools of our own, run in this process, for agents that have tools: read a score, list the data."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mle_star.data.place import DataFolder
from mle_star.method.scores import parse_score
from mle_star.sdk.definitions import MCP_SERVER

if TYPE_CHECKING:
    from claude_agent_sdk import McpSdkServerConfig

logger = logging.getLogger(__name__)

MAX_FILES = 500


def build_tool_server(data_dir: Path) -> McpSdkServerConfig | None:
    """The in-process MCP server; None, with a warning, when the SDK cannot make one."""
    try:
        from claude_agent_sdk import create_sdk_mcp_server, tool

        @tool("parse_score", "Read the validation score out of a script's output.", {"output": str})
        async def parse(arguments: dict[str, Any]) -> dict[str, Any]:
            return _answer({"score": parse_score(str(arguments.get("output", "")))})

        @tool("list_data_files", "List the files of the data folder with their sizes in bytes.", {})
        async def list_files(arguments: dict[str, Any]) -> dict[str, Any]:
            return _answer(list_data_files(data_dir))

        return create_sdk_mcp_server(MCP_SERVER, tools=[parse, list_files])
    except Exception as error:  # agents can do without: a warning is all that a failure here may be
        logger.warning("the agents go without their own tools: %s: %s", type(error).__name__, error)
        return None


def list_data_files(data_dir: Path) -> dict[str, Any]:
    """The files below a folder, relative to it, largest number `MAX_FILES`."""
    files: list[dict[str, Any]] = []
    data = DataFolder(data_dir)
    for path, status in data.files():
        if len(files) == MAX_FILES:
            return {"files": files, "truncated": True}
        files.append({"path": Path(path).relative_to(data.root).as_posix(), "bytes": status.st_size})
    return {"files": files, "truncated": False}


def _answer(value: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": json.dumps(value)}]}
