//! (module body to come)
