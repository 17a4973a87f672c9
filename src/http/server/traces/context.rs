//! The place of a request in a trace that may have begun elsewhere: W3C Trace Context, level 1.

/// Most bytes of a `tracestate` that is passed on; a longer one is dropped, as the recommendation allows.
const MAX_STATE: usize = 512;

/// Identity of a request's span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::server) struct TraceContext {
    /// The trace, not 0.
    pub(in crate::server) trace_id: u128,
    /// The request's own span, not 0.
    pub(in crate::server) span_id: u64,
    /// The caller's span, where the trace began elsewhere.
    pub(in crate::server) parent: Option<u64>,
    /// What the caller's vendors keep with the trace.
    pub(in crate::server) state: Option<String>,
    /// Whether the spans are exported.
    pub(in crate::server) sampled: bool,
}

impl TraceContext {
    /// Goes on with the trace of a `traceparent` header, whose decision on sampling holds; without a valid one begins a trace, which is
    /// sampled with probability `ratio`.
    pub(in crate::server) fn of_headers(
        traceparent: Option<&str>,
        tracestate: Option<&str>,
        ratio: f64,
    ) -> Self {
        let span_id = fastrand::u64(1..);
        match traceparent.and_then(parse) {
            Some((trace_id, parent, sampled)) => Self {
                trace_id,
                span_id,
                parent: Some(parent),
                state: tracestate
                    .filter(|state| !state.is_empty() && state.len() <= MAX_STATE)
                    .map(str::to_owned),
                sampled,
            },
            None => Self {
                trace_id: fastrand::u128(1..),
                span_id,
                parent: None,
                state: None,
                sampled: fastrand::f64() < ratio,
            },
        }
    }

    /// The request's span in the form of a `traceparent` header.
    pub(in crate::server) fn header(&self) -> String {
        format!("00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

/// Trace, span and sampling of a `traceparent`: `VERSION-TRACE-SPAN-FLAGS` in lower-case hexadecimal. Versions above 00 may have more
/// fields behind these.
fn parse(text: &str) -> Option<(u128, u64, bool)> {
    let mut fields = text.split('-');
    let mut hex = |digits: usize| {
        let field = fields.next()?;
        let is_hex = field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        u128::from_str_radix(field, 16).ok().filter(|_| is_hex && field.len() == digits)
    };
    let (version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    let whole = version > 0 || fields.next().is_none();
    let valid = version != 0xff && trace != 0 && span != 0 && whole;
    valid.then_some((trace, span as u64, flags & 1 == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_trace_goes_on_with_the_callers_decision() {
        let context = TraceContext::of_headers(Some(CALLER), Some("vendor=1"), 0.0);
        assert_eq!(context.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!((context.parent, context.sampled), (Some(0x00f0_67aa_0ba9_02b7), true));
        assert_eq!(context.state.as_deref(), Some("vendor=1"));
        let next = TraceContext::of_headers(Some(&context.header()), None, 0.0);
        assert_eq!((next.trace_id, next.parent), (context.trace_id, Some(context.span_id)));
        let unsampled = CALLER.replace("-01", "-00");
        assert!(!TraceContext::of_headers(Some(&unsampled), None, 1.0).sampled);
    }

    #[test]
    fn what_is_no_traceparent_begins_a_trace() {
        for wrong in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            let context = TraceContext::of_headers(Some(wrong), Some("vendor=1"), 1.0);
            assert_eq!((context.parent, context.state, context.sampled), (None, None, true), "{wrong}");
        }
        let later = TraceContext::of_headers(
            Some(&CALLER.replace("00-4", "01-4").replace("-01", "-01-more")),
            None,
            1.0,
        );
        assert!(later.parent.is_some());
        assert!(!TraceContext::of_headers(None, None, 0.0).sampled);
    }
}
