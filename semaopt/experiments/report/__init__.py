"""Reports: HTML, Markdown, figures and TensorBoard."""
