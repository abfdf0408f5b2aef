"""`evalsvc capacity`: what a model takes on devices that are not here, from its config.json alone."""

from typing import Annotated, Literal

import typer

from evalsvc.cli.common import Json


def capacity(
    config: Annotated[
        str | None,
        typer.Option(
            "--config", metavar="FILE", help="A model's config.json, or a name that ships (kimi-k2, glm-5, …)."
        ),
    ] = None,
    plan: Annotated[
        list[str] | None, typer.Option("--plan", metavar="PLAN", help="A plan; again for more. bf16 without any.")
    ] = None,
    gpus: Annotated[int, typer.Option("--gpus", min=1, metavar="N", help="Devices that share the model.")] = 1,
    gpu_memory: Annotated[
        float, typer.Option("--gpu-memory", metavar="GB", help="Memory of each, in 10^9 bytes.")
    ] = 80,
    utilization: Annotated[
        float,
        typer.Option("--utilization", metavar="SHARE", help="Proportion of it that weights and KV may take."),
    ] = 0.9,
    context: Annotated[
        list[int] | None,
        typer.Option("--context", min=1, metavar="TOKENS", help="Tokens of a request; again for more."),
    ] = None,
    attention: Annotated[
        Literal["tensor", "data"],
        typer.Option(help="Attention cut over the devices, or whole on each."),
    ] = "tensor",
    experts: Annotated[
        Literal["tensor", "whole"], typer.Option(help="Each expert cut over the devices, or given out whole.")
    ] = "tensor",
    packs: Annotated[
        Literal["all", "experts"], typer.Option(help="What a plan's weights format is of: every matrix, or experts.")
    ] = "all",
    published: Annotated[
        bool, typer.Option("--published", help="Hold the arithmetic against published figures in place of a model.")
    ] = False,
    json: Json = False,
) -> None:
    """Work out what fits on devices, from a config.json alone.

    Weights a device, KV bytes a token, tokens and requests that fit, stage by stage. No weights, no torch.

    \b
    Example:
      evalsvc capacity --config kimi-k2 --plan "w=int4:g32" --gpus 8
    """
    from evalsvc.capacity.answer import answer
    from evalsvc.capacity.published import held_against
    from evalsvc.capacity.sharing import Devices
    from evalsvc.cli.capacity_report import published_document, render_answer, render_published
    from evalsvc.cli.common import print_json, stdout_console
    from evalsvc.errors import ConfigError

    if published == (config is not None):
        raise ConfigError("give either --config, or --published to hold the arithmetic against published figures")
    if not 0 < gpu_memory < float("inf") or not 0 < utilization <= 1:
        raise ConfigError("--gpu-memory must be above 0, and --utilization above 0 and at most 1")
    if published:
        held = held_against()
        if json:
            print_json(published_document(held))
        else:
            stdout_console().print(render_published(held))
        return
    devices = Devices(
        count=gpus,
        memory_bytes=int(gpu_memory * 10**9),
        utilization=utilization,
        data_attention=attention == "data",
        experts=experts == "whole",
        packs=packs,
    )
    found = answer(str(config), plan or ["w=bf16,kv=bf16"], devices, context or [4096, 32768, 131072])
    if json:
        print_json(found.to_json())
    else:
        stdout_console().print(render_answer(found))
