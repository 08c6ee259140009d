"""Parts of the manifest: what each holds, and how it is read."""
