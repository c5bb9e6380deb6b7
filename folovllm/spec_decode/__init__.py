"""What guesses the next tokens; worker/speculation.py has them checked."""
