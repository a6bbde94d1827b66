"""What trains a run: `lab` on one device, many replicas of one shape in one program."""
