"""Documents of JSON and TOML, read strictly: records and settings that their types describe."""
