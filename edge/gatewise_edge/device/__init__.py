"""One instance to one answer: stages, decisions and audits."""
