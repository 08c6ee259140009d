"""Documents of JSON: records that their types describe, read strictly."""
