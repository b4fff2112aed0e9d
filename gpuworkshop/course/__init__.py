"""How the course is taught: questions, exercises, predictions and the learner's progress."""
