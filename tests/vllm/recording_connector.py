"""A connector for vLLM's engine that says with an answer what its request was given; vLLM imports it by its path."""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector


class RecordingConnector(ExampleConnector):
    """Keys and values go through files, as in its base."""

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Nothing is sent later."""
        params = request.kv_transfer_params
        if not params:
            return False, None
        received = {"received": params, "num_blocks": len(block_ids)}
        if params.get("do_remote_decode"):
            received |= {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": 5600}
        return False, received
