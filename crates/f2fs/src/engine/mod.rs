//! (being written)
/// A mounted volume.
pub struct F2fs;
/// How a volume is opened.
pub struct OpenOptions;
