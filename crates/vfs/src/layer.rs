//! The layers of a volume's state: each is a struct that owns its own state and the layer below.
//!
//! A layer derefs to the one below, so the functions of a layer can use the state and the functions of all layers below
//! it, and of none above: the compiler refuses an arrow upwards. `lib.rs` lists the layers.

/// Makes a layer deref to the layer below, which it owns in a field.
macro_rules! layer {
    ($upper:ident over $field:ident: $lower:ident) => {
        impl<F: crate::format::Format> std::ops::Deref for $upper<F> {
            type Target = $lower<F>;

            fn deref(&self) -> &$lower<F> {
                &self.$field
            }
        }
    };
}

pub(crate) use layer;
