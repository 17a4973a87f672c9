//! Passes over a row, compiled for the widest vector registers of the machine.

/// Defines a function in three instances, for AVX-512, AVX2 and the target's baseline; a call runs
/// the best one that the machine has.
///
/// Every instance is the same Rust code without fused multiply-add and without reordered sums, so
/// the result does not depend on the instance. Functions that the body calls take part if they are
/// `inline(always)`.
macro_rules! widest {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)? $body:block) => {
        $(#[$doc])*
        pub(super) fn $name($($arg: $ty),*) $(-> $out)? {
            #[inline(always)]
            fn baseline($($arg: $ty),*) $(-> $out)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $ty),*) $(-> $out)? {
                    baseline($($arg),*)
                }

                #[target_feature(enable = "avx2,avx512f,avx512dq,avx512bw,avx512vl")]
                fn avx512($($arg: $ty),*) $(-> $out)? {
                    baseline($($arg),*)
                }

                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                {
                    // SAFETY: the features were detected.
                    return unsafe { avx512($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the feature was detected.
                    return unsafe { avx2($($arg),*) };
                }
            }
            baseline($($arg),*)
        }
    };
}
pub(super) use widest;
