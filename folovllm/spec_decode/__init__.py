"""What proposes the next tokens; worker/speculation.py has them verified."""
