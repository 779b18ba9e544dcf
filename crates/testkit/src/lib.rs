//! Model file system, random operations, crash enumeration, image mutators, judges
