"""The answer to an instance: stages, decisions, offloads and audits."""
