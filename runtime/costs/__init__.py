"""What calls cost on this machine: measured, kept between runs, corrected while texts are made."""
