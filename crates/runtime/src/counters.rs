//! Counters, each declared once: fields, differences, atomics to count with, and texts for documents.

/// A count, or several.
pub trait Count {
    /// Returns the growth since `earlier`, which was taken from the same counters.
    fn since(&self, earlier: &Self) -> Self;
    /// Hands every count with its name to `to`. `name`: that of a single count.
    fn list(&self, name: &'static str, to: &mut dyn FnMut(&'static str, u64));
}

impl Count for u64 {
    fn since(&self, earlier: &u64) -> u64 {
        self - earlier
    }

    fn list(&self, name: &'static str, to: &mut dyn FnMut(&'static str, u64)) {
        to(name, *self);
    }
}

/// Declares a struct of counters, and where it has a second part, the atomics that are counted with.
///
/// The struct has public fields, of type `u64` or declared by this macro themselves; `since` gives the difference of
/// each, `named` lists all with their names, and `TEXTS` has the names and texts of its own fields.
/// The fields of the second part, after `+`, are `u64`, and atomics of the same names in the struct named there, whose
/// `totals` returns what was counted so far; the fields of the first part then have their default values.
/// `Debug`, `Clone`, `Copy`, `Default`, `PartialEq` and `Eq` are derived; further attributes are taken over.
///
/// ```
/// use std::sync::atomic::Ordering;
///
/// moafs_runtime::counters! {
///     /// What a cache has done.
///     pub struct Counters {
///         /// Bytes that it occupies.
///         bytes: u64,
///     } + pub struct Tally {
///         /// Blocks that were found.
///         hits,
///         /// Blocks that were not found.
///         misses,
///     }
/// }
///
/// let tally = Tally::default();
/// tally.hits.fetch_add(3, Ordering::Relaxed);
/// let before = tally.totals();
/// tally.hits.fetch_add(2, Ordering::Relaxed);
/// assert_eq!(tally.totals().since(&before), Counters { hits: 2, ..Counters::default() });
/// assert_eq!(Counters::TEXTS[1], ("hits", "Blocks that were found."));
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $Counters:ident {
            $($(#[doc = $text:literal])+ $(#[serde($($serde:tt)+)])? $name:ident: $Type:ty,)*
        } $(+ $of_tally:vis struct $Tally:ident {
            $($(#[doc = $counted_text:literal])+ $counted:ident,)*
        })?
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        $visibility struct $Counters {
            $($(#[doc = $text])+ $(#[serde($($serde)+)])? pub $name: $Type,)*
            $($($(#[doc = $counted_text])+ pub $counted: u64,)*)?
        }

        impl $Counters {
            /// Names and texts of the counters, in the order of their declaration.
            pub const TEXTS: &'static [(&'static str, &'static str)] = &[
                $((stringify!($name), concat!($($text),+).trim_ascii()),)*
                $($((stringify!($counted), concat!($($counted_text),+).trim_ascii()),)*)?
            ];

            /// Returns the difference to `earlier` counters of the same source.
            pub fn since(&self, earlier: &$Counters) -> $Counters {
                $Counters {
                    $($name: $crate::counters::Count::since(&self.$name, &earlier.$name),)*
                    $($($counted: self.$counted - earlier.$counted,)*)?
                }
            }

            /// Returns every counter with its name.
            pub fn named(&self) -> ::std::vec::Vec<(&'static str, u64)> {
                let mut all = ::std::vec::Vec::new();
                $crate::counters::Count::list(self, "", &mut |name, count| all.push((name, count)));
                all
            }
        }

        impl $crate::counters::Count for $Counters {
            fn since(&self, earlier: &$Counters) -> $Counters {
                $Counters::since(self, earlier)
            }

            fn list(&self, _name: &'static str, to: &mut dyn FnMut(&'static str, u64)) {
                $($crate::counters::Count::list(&self.$name, stringify!($name), to);)*
                $($(to(stringify!($counted), self.$counted);)*)?
            }
        }

        $(
            /// The totals while they are counted; one atomic each.
            #[derive(Debug, Default)]
            $of_tally struct $Tally {
                $($(#[doc = $counted_text])+ pub $counted: ::std::sync::atomic::AtomicU64,)*
            }

            impl $Tally {
                /// Returns the totals so far; the other counters have their default values.
                pub fn totals(&self) -> $Counters {
                    $Counters {
                        $($counted: self.$counted.load(::std::sync::atomic::Ordering::Relaxed),)*
                        ..$Counters::default()
                    }
                }
            }
        )?
    };
}
