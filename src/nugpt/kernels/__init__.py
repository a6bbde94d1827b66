"""Operations that have a fast form, each beside the plain function that defines it."""
