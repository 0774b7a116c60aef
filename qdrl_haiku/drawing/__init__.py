"""Pictures: curves, skills, repertoires, episodes, costs."""
