//! Scalar arithmetic of PTX: conversions, roundings, integer and floating-point operations of one lane.
