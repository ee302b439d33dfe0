"""Statistics and pictures of results. The only place that draws."""
