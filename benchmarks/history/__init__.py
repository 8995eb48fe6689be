"""Tasks that airspeed velocity (asv) times over the history of the project."""
