"""Whatever no other parser claims: routed by load alone, its body never looked at."""

from weft.epp.decision.request import InferenceRequest
from weft.epp.parsers.parser import Call, Dialect, Reads


class PassthroughParser:
    """Ends the list of parsers."""

    type = "passthrough-parser"
    suffixes = ()
    model_header = None
    dialect = Dialect.NONE

    def reads(self, path: str) -> Reads:
        """The body passes as it comes, however long."""
        del path
        return Reads.HEADERS

    def parse(self, call: Call) -> InferenceRequest:
        """A request without a prompt."""
        return call.to_request(self.type)

    def rename(self, call: Call, model: str) -> bytes:
        """There is no model to rename."""
        del model
        return call.body
