//! What a file system is, whatever its format.
//!
//! The one idea: POSIX is written once, here, over a [`Format`] that stores. Data land in the file
//! cache and are placed later, when something makes a dirty block leave ([`plan::Due`]); the
//! format then decides who travels with it and where to ([`Format::plan`]); vfs carries that out.
//! vfs knows no on-disk byte.
//!
//! | module | what it holds |
//! |---|---|
//! | [`types`] | inode numbers, names, attributes, block runs |
//! | [`format`](mod@format) | the seam to the formats: [`Format`], [`FormatOp`] |
//! | [`plan`] | the seam of write-back: [`plan::Plan`], [`plan::DirtyView`] |
//! | [`api`] | what fronts see: [`Vfs`] |
//! | [`layout`] | layout score, free runs, scattered files: one measure for all |
//! | [`error`] | [`Error`] and its POSIX numbers |

pub mod api;
pub mod counters;
pub mod error;
pub mod format;
mod inner;
pub mod layout;
pub mod plan;
pub mod types;

pub use api::{Options, Stat, Vfs, Who};
pub use error::{Error, Result};
pub use format::{Format, FormatOp};
