//! The daemon's page: what a browser shows at `/`. Rendered here, of the same parts as `-o html`; all of it can be read
//! without script. What a client without the token sees is what the API gives it.

mod answer;
mod live;
mod node;
mod process;
mod shell;
mod window;

use axum::{
    Extension, Router,
    extract::DefaultBodyLimit,
    http::{HeaderValue, header},
    middleware,
    response::Response,
    routing::{get, post},
};
use drainprof_report::export::html;
use maud::html as markup;

use super::{super::options::Limits, guard::Access, shared::Shared};

/// What a page may do: load its script, style and data from here, and nothing else.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
pub(super) fn router(limits: &Limits) -> Router<Shared> {
    Router::new()
        .route("/", get(node::page))
        .route("/process/{pid}", get(process::page))
        .route("/process/{pid}/window", post(window::open))
        .route("/window/{id}", get(window::about).post(window::report))
        .route("/compare", post(window::compare))
        .route("/help", get(help))
        .route("/page.css", get(live::style))
        .route("/page.js", get(live::script))
        .route("/events", get(live::events))
        .layer(DefaultBodyLimit::max(limits.body_bytes))
        .layer(middleware::map_response(protected))
}

/// Headers that keep a page to itself.
async fn protected(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // A form's `Origin` is needed here, so nothing stricter.
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

async fn help(Extension(_): Extension<Access>) -> Response {
    let content = markup! {
        p {
            "drainprof shows which granules (arenas, pools, slabs, pages) few long-lived objects keep from being given "
            "back. Open a process: the answer stands on top, in sentences. Select a time in a picture, and all that is "
            "below is of that time."
        }
        h2 { "Why is this not RSS?" }
        p {
            "RSS is all resident memory: live objects, free memory that the allocator keeps, and granules that are "
            "retained by few objects. Only the last two are waste. Retained bytes are the sizes of granules, "
            "touched or not, counted from level objects on; a census reads the heaps from outside and says what is free."
        }
        h2 { "What do I do?" }
        p {
            "Growing: open a diagnostic window; it names the call stacks. Pinned: allocate what lives long elsewhere, "
            "copy it out, or close when it is freed. Free: malloc_trim(0), or fewer arenas."
        }
        h2 { "What the numbers mean" }
        (html::glossary())
    };
    shell::page("Help", false, &content)
}
