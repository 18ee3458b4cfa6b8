"""What a run shows: detectors, diagnosis and the places reports go to."""
