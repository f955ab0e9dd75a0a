"""Items of the Responses API: read from requests, kept in conversations, and written as messages of a model."""
