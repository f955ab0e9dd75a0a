"""The picker's Prometheus series, under the reference's names."""
