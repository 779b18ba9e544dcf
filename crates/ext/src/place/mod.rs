//! Where things go: the policies that decide. They decide only; the engine carries out and counts.
//!
//! | module | policy |
//! |---|---|
//! | [`ffs`] | the Fast File System's: the baseline of every comparison |

pub mod ffs;
