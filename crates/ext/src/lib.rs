//! The ext family of formats, and the FFS way of placing data in it
