"""What others do with bursts of events, case by case, and what a fold does; a module for each project."""
