"""What the console can do: each action shows a plan first, and then runs the same function as the command."""
