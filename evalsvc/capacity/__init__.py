"""What a model takes on devices that are not here: arithmetic over its config.json, without weights or torch."""
