"""What runs where: from a bundle and a user's options to engines, shapes, context and memory."""
