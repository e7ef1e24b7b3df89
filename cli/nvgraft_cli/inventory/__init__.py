"""What the hook keeps of this host between containers: looking at it, making it anew, and having it made anew."""
