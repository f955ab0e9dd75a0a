"""The modes in which a gateway sends the bodies of a request and of its response."""

import logging
from dataclasses import dataclass

from weft.epp.request.values import Refused
from weft.epp.server import ext_proc
from weft.epp.server.ext_proc import ProcessingRequest

log = logging.getLogger("weft.epp")

_BODY_MODES = (ext_proc.FULL_DUPLEX, ext_proc.BUFFERED)
_BODY_MODE_NAMES = "FULL_DUPLEX_STREAMED or BUFFERED"


@dataclass(frozen=True, slots=True)
class Modes:
    """Modes of one request. An older gateway does not report its modes and has the defaults."""

    is_held: bool = False  # the gateway holds the request's body until the decision
    is_retained: bool = False  # the gateway keeps pieces of the response until they are answered
    can_follow: bool = True  # the gateway sends the response to the picker


def read_modes(message: ProcessingRequest) -> Modes:
    """Returns the modes that the gateway reports with the request's headers. Raises `Refused` if the picker cannot
    read the body.
    """
    if not message.HasField("protocol_config"):
        return Modes()
    modes = message.protocol_config
    has_body = not message.request_headers.end_of_stream
    if has_body and modes.request_body_mode not in _BODY_MODES:
        log.error("the gateway's request_body_mode must be %s", _BODY_MODE_NAMES)
        raise Refused(500, f"the gateway must send bodies to the picker {_BODY_MODE_NAMES}")
    is_retained = modes.response_body_mode == ext_proc.STREAMED
    return Modes(
        is_held=has_body and modes.request_body_mode == ext_proc.BUFFERED,
        is_retained=is_retained,
        can_follow=is_retained or modes.response_body_mode == ext_proc.FULL_DUPLEX,
    )
