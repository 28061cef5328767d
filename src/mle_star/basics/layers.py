"""The layers of the settings, put together by pydantic-settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from mle_star.basics.settings import PipelineConfig


def layered(layers: Iterable[dict[str, Any]]) -> PipelineConfig:
    """The settings of all layers: the first that knows a name counts, and mappings are merged."""
    return _Layered(layers=tuple(_Layer(values) for values in layers))  # type: ignore[call-arg]


class _Layer(PydanticBaseSettingsSource):
    """One place that settings come from."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(_Layered)
        self.values = values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The value of one setting, its name, and that it needs no decoding."""
        return self.values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        """All that is said here."""
        return self.values


class _Layered(PipelineConfig, BaseSettings):
    """Takes the layers that it is handed, and none of the library's own."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: Any, *others: Any, **more: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        layers: tuple[PydanticBaseSettingsSource, ...] = init_settings.init_kwargs["layers"]
        return layers
