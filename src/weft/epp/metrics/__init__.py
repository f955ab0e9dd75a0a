"""The picker's Prometheus series, with the names of llm-d's reference picker."""
