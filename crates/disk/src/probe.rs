//! Wrappers that observe a disk or inject failures. They stand directly above the device, below
//! queue and split, so that they see the requests that the device sees.
//!
//! | module | contents |
//! |---|---|
//! | [`trace`] | counters of requests by operation, kind and cause; the list of requests |
//! | [`fault`] | errors, short writes, delays, failing flushes, a full host |
//! | [`crash`] | every state that a power cut could leave |

pub mod crash;
pub mod fault;
pub mod trace;
