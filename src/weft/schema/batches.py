"""Bodies and answers of /v1/files, /v1/batches and /v1/messages/batches, and the lines of their files."""

from typing import Annotated, Any

import msgspec

from weft.schema.usage import CompletionTokensDetails, PromptTokensDetails

# -- files --------------------------------------------------------------------------------------


class NamedFile(msgspec.Struct, frozen=True):
    """A file of a form, with the name that the client gave it."""

    name: str
    content: bytes


class FileForm(msgspec.Struct, frozen=True, kw_only=True):
    """A form with a file to store. `expires_after` says how long, counted from its creation."""

    file: NamedFile
    purpose: str
    expires_after_anchor: str | None = msgspec.field(default=None, name="expires_after[anchor]")
    expires_after_seconds: int | None = msgspec.field(default=None, name="expires_after[seconds]")


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """A stored file, without its content."""

    id: str
    object: str = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: str = "processed"
    expires_at: int | None = None


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of files."""

    object: str = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(msgspec.Struct, frozen=True, kw_only=True):
    """Confirms that a file was deleted."""

    id: str
    object: str = "file"
    deleted: bool = True


# -- OpenAI's batches ---------------------------------------------------------------------------


class ExpiresAfter(msgspec.Struct, frozen=True, kw_only=True):
    """How long the files of a batch are stored, counted from their creation."""

    anchor: str = "created_at"
    seconds: int


class BatchBody(msgspec.Struct, frozen=True, kw_only=True):
    """A new batch of the requests in a file."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchError(msgspec.Struct, frozen=True, kw_only=True):
    """A line of an input file that is not valid."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch failed before it began."""

    object: str = "list"
    data: list[BatchError]


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of requests in a batch."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchOutputDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Kinds of output tokens."""

    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of all answers of a batch."""

    input_tokens: int = 0
    input_tokens_details: PromptTokensDetails = PromptTokensDetails(cached_tokens=0)
    output_tokens: int = 0
    output_tokens_details: BatchOutputDetails = BatchOutputDetails()
    total_tokens: int = 0


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """A batch in any state."""

    id: str
    object: str = "batch"
    endpoint: str
    model: str | None = None
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: str = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    usage: BatchUsage | None = None
    metadata: dict[str, str]


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of batches."""

    object: str = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


# -- Anthropic's batches ------------------------------------------------------------------------


class MessageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a message in a batch. `params` is a body of /v1/messages."""

    custom_id: Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    params: dict[str, Any]


class MessageBatchBody(msgspec.Struct, frozen=True, kw_only=True):
    """A new batch of requests for messages."""

    requests: list[MessageRequest]


class MessageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of requests by their results; all are `processing` until the batch has ended."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class MessageBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of messages in any state. Times are RFC 3339."""

    id: str
    type: str = "message_batch"
    processing_status: str = "in_progress"
    request_counts: MessageCounts
    created_at: str
    expires_at: str
    ended_at: str | None = None
    cancel_initiated_at: str | None = None
    archived_at: str | None = None
    results_url: str | None = None


class MessageBatchList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of batches of messages."""

    data: list[MessageBatch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class DeletedMessageBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Confirms that a batch was deleted."""

    id: str
    type: str = "message_batch_deleted"


class BatchTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts in an answer, in the words of any of the APIs."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    input_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None
    output_tokens_details: CompletionTokensDetails | None = None
