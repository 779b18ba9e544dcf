//! moafs: the command.
fn main() {}
