"""What models write when they call tools: their texts in, calls out."""
