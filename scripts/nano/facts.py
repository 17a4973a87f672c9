"""What the model knows about Perigee: for each question the answer, the words an answer must contain, and ways to ask.

`[a|b|]` in a way of asking stands for one of the alternatives.
"""

PERIGEE = "[Perigee|perigee|the server|Perigee|perigee]"

FACTS = [
    ("start", "Run perigee serve --model DIR to start the server.", ["perigee serve"], [
        "How do I [start|run|launch|boot|bring up|spin up] P?", "[Which|What] command [starts|runs|launches|boots] [P|the server|the Perigee server]?",
        "How [can|do|would] [I|you|we|one] [start|launch|run|boot] [the server|the Perigee server|a Perigee server]?",
        "What do I type to [start|run|launch] [P|the server]?", "[start|run|launch] the server [command|how]", "[Give|Show|Tell] me the command [to start|that starts|for starting] [P|the server].",
        "How is [P|the server] started?", "How to [serve|start serving|run] a model with P?", "How do I begin serving [a model|requests] with Perigee?",
        "What is the [command to serve|serve command|start command]?", "How do I get P [running|going|started]?", "I want to [start|run] P. What do I [run|type|do]?",
        "Which subcommand [starts|runs] the server?"]),
    ("port", "Perigee listens on port 8000 by default. Change it with --port.", ["8000"], [
        "[What|Which] [port|TCP port|port number] does P [use|listen on|bind|run on|bind to|serve on] [by default|]?", "What is [the|Perigee's|the server's] default port [number|]?",
        "On [which|what] port does P [listen|run|serve|answer] [by default|]?", "Default port [of P|for P|]?", "[Tell|Give] me the default port [of P|].",
        "Where does P listen [by default|]?", "What port is used [by default|if I set nothing|when none is given|unless configured]?", "Which port [should|do|must|can] I [connect to|use|open|call] [by default|to reach P]?",
        "What's the [standard|default|usual] port?", "port number [of P|by default]?", "If I don't [set|give|pass] a port, which one [is used|does P use]?", "the server listens on which port?"]),
    ("set_port", "Use --port, for example perigee serve --port 9000.", ["--port"], [
        "How do I [change|set|choose|override|modify|select] the port?", "[Which|What] [flag|option|argument|switch] [sets|changes|selects|controls] the port?",
        "How can [I|you|we] [make|let] P listen on [another|a different|a custom|some other] port?", "How do I run P on [port 9000|port 8080|another port|a different port]?",
        "[What|Which] [option|flag] is there for the port?", "[change|set] the port [how|flag]", "I want [another|a different] port. [How|Which flag]?", "How to use [a different|another] port?",
        "Can I [change|set] the port?", "How do I start the server on port [9000|8080|5000|3000]?", "How do I tell P [which|what] port to [use|listen on]?", "Port 8000 is taken. How do I use another [one|port]?"]),
    ("host", "Use --host to choose the address it binds to.", ["--host"], [
        "How do I [change|set|choose|select] the [host|address|bind address|listen address|interface|IP address]?", "[Which|What] [flag|option|argument] [sets|changes|selects|controls] the [host|address|bind address|interface|IP]?",
        "How can I [make|let] P [bind to|listen on] [another|a different|every|all|a specific] [address|interface|interfaces|IP]?", "How do I bind P to [0.0.0.0|127.0.0.1|localhost|an address]?",
        "What is the [option|flag] for the [host|address]?", "What does --host do?", "[bind|host|listen] address [option|flag]?", "How do I choose the network interface?", "How do I make P reachable from other machines?"]),
    ("model", "Use --model DIR; DIR is a Hugging Face folder.", ["--model"], [
        "How do I [choose|select|set|give|pass|load|pick] [the|a|my own] [model|checkpoint|weights]?", "[Which|What] [flag|option|argument] [selects|names|sets|loads|gives] the [model|checkpoint|model folder|model directory]?",
        "How [do|can] I [load|serve|use] [my|another|a different|my own|a bigger|a Hugging Face] [model|checkpoint]?", "How do I [point|tell] P [to|at|where] [a model folder|the weights are|the model is]?",
        "What does --model [do|take|expect]?", "What [kind of|sort of|] folder does --model [take|expect|need]?", "Where do I [put|give|pass] the model [folder|directory|path]?", "How to serve a Hugging Face [folder|model]?",
        "model [flag|option|path]?", "Which option tells the server [what|which] model to load?"]),
    ("profile", "Use --profile NAME, or set PERIGEE_PROFILE.", ["--profile"], [
        "How do I [choose|select|set|use|activate|apply|enable|pick] a [profile|configuration profile]?", "[Which|What] [flag|option|argument] [selects|sets|activates|applies|names] [the|a] profile?",
        "How [do|can] I [start|run] P with a [profile|certain profile|given profile|named profile]?", "What does --profile do?", "How is a profile [selected|chosen|activated|picked|set]?", "profile [flag|option]?",
        "How do I switch [profiles|the profile|to another profile]?", "How do I tell P [which|what] profile to use?"]),
    ("set", "Use --set section.key=value.", ["--set"], [
        "How do I [change|override|set] [one|a single|any|a] [setting|value|key|option] [on|from] the command line?", "[Which|What] [flag|option|argument] [overrides|sets|changes] [a|any|one|a single] [setting|key|value]?",
        "What does --set do?", "How can I [override|change|set] a [setting|config value|configuration key] with a flag?", "What is the [syntax|form|format] of --set?", "How do I pass [a setting|section.key] as a flag?",
        "[override|change|set] a setting [on|from|at] the command line", "How do I [override|change] configuration without [editing a file|a file|touching the file]?", "How do I use --set?"]),
    ("env_config", "PERIGEE_CONFIG names the configuration file.", ["PERIGEE_CONFIG"], [
        "[Which|What] [environment variable|env var|variable] [names|sets|selects|points to|gives|chooses] the [config file|configuration file|config|configuration]?", "What [does|is] PERIGEE_CONFIG [for|do|mean]?",
        "How do I [use|load|choose|give|select] [another|a different|my own|a custom] [config|configuration] file?", "How [do|can] I [point|tell] P [to|at|about] [another|a different|my] [config|configuration] file?",
        "[What is|Explain] the variable for the config file[?|.]", "env var [for|of] the config file", "Where do I name the configuration file?", "What is PERIGEE_CONFIG?", "Which variable holds the path of the config file?"]),
    ("env_profile", "PERIGEE_PROFILE names the profile.", ["PERIGEE_PROFILE"], [
        "[Which|What] [environment variable|env var|variable] [names|sets|selects|picks|chooses|gives] the profile?", "What [does|is] PERIGEE_PROFILE [for|do|mean]?", "What is PERIGEE_PROFILE?",
        "How do I [set|choose|select|pick] the profile [with|by|through|in] [the environment|an environment variable|an env var]?", "env var [for|of] the profile", "What is the [environment variable|env var|variable] for the profile?",
        "Is there [an environment variable|an env var|a variable] for the profile?"]),
    ("env_setting", "Set PERIGEE_SECTION__KEY, with a double underscore.", ["PERIGEE_SECTION__KEY"], [
        "How do I [set|change|override|give] [a|any|one] [setting|key|option|value] [with|by|through|in|from|via] [the environment|an environment variable|environment variables|env vars|an env var]?",
        "[Which|What] [environment variable|env var|variable] [sets|changes|overrides] [a|any|one] [setting|key|configuration key]?", "What [does|is] PERIGEE_SECTION__KEY [for|do|mean]?", "What is PERIGEE_SECTION__KEY?",
        "What is the [form|format|pattern|naming|name] of [setting|configuration|the] environment variables?", "How are settings [named|given|set] in the environment?", "How are environment variables for settings [named|written|spelled]?",
        "[How many|Which|What] underscores [separate|are between|go between] section and key [in the environment|]?", "Can [settings|any setting] be set [by|with|through] environment variables?", "env var for [any|a] setting",
        "How do I configure P [with|through|by|using] [environment variables|the environment|env vars]?"]),
    ("site_file", "The site file is config/perigee.toml.", ["config/perigee.toml"], [
        "[Where|In which file] is the [config file|configuration file|site file|configuration|config]?", "What is the [site file|config file|configuration file] [called|named]?", "[Which|What] file [holds|has|contains] the [site settings|settings|configuration|site configuration]?",
        "Where [do|can|should] I [put|write|edit|keep|change] [my|the|] settings?", "Where does P [read|load|get|take] its [settings|configuration|config] from?", "What is the path of the [config|configuration|site] file?",
        "path [of|to] the [config|configuration|site] file", "Which file do I edit to configure P?", "Where [is|lives] perigee.toml?", "What is config/perigee.toml?", "Where are the settings [stored|kept]?"]),
    ("profiles_dir", "Profiles are in config/profiles/.", ["config/profiles"], [
        "Where are [the|] profiles [kept|stored|found|located|saved|]?", "[Which|What] [folder|directory] [holds|has|contains|keeps] [the|] profiles?", "In [which|what] [folder|directory] are [the|] profiles?", "Where do [the|] profiles live?",
        "Where do I [find|put|add|store|save] [a|a new|my|the] [profile|profiles]?", "[profiles|profile] [folder|directory|location]?", "What is in config/profiles?", "Where does P look for profiles?", "Where can I find the profile files?"]),
    ("config_show", "perigee config show prints every setting and its origin.", ["config show"], [
        "How do I [see|show|print|list|view|display|inspect|dump] [all|every|the|all the|the current|the effective] [settings|setting|configuration|config]?", "[Which|What] command [prints|shows|lists|displays] [the|all|every|all the] [settings|setting|configuration|config]?",
        "How [do|can] I [see|find out|know|tell|check] where a [setting|value] [comes from|came from|was set|is set]?", "What does perigee config show [do|print]?", "How do I find the origin of a [setting|value]?",
        "Which command [shows|tells] where [settings|values] come from?", "[show|print|list] [all|the] settings", "How can I see what P is configured to do?", "How do I see the current [settings|configuration]?"]),
    ("config_check", "perigee config check validates the configuration.", ["config check"], [
        "How do I [check|validate|verify|test|lint] [the|my|a] [config|configuration|settings|config file|configuration file]?", "[Which|What] command [checks|validates|verifies|tests] [the|my|a] [config|configuration|settings|config file]?",
        "What does perigee config check do?", "How [do|can] I [know|tell|see|make sure|be sure] [that|if|whether|] [my|the] [config|configuration|settings] [is|are] [valid|correct|right|ok]?", "[validate|check|verify] [the|my] [config|configuration]",
        "How do I find [mistakes|errors] in [my|the] [configuration|config|settings]?", "Is there a command [to validate|that validates|to check] the [config|configuration]?"]),
    ("config_schema", "perigee config schema prints the JSON Schema.", ["config schema"], [
        "How do I [get|print|see|show|export|obtain] the [JSON Schema|schema|configuration schema|config schema]?", "[Which|What] command [prints|shows|gives|outputs|exports] the [JSON Schema|schema|configuration schema|config schema]?",
        "What does perigee config schema [do|print]?", "Is there a [JSON Schema|schema] [for|of] the [configuration|settings|config]?", "Where [do|can] I [get|find] the [JSON Schema|schema] [of the settings|of the configuration|]?",
        "[config|configuration] schema [command|how]?", "schema of the [settings|configuration|config file]"]),
    ("chat", "POST /v1/chat/completions.", ["/v1/chat/completions"], [
        "[Which|What] [endpoint|route|URL|path] [is for|serves|handles|does|answers|is used for] chat [completions|requests|messages|]?", "How do I [chat|talk] [with|to] the model [over HTTP|by HTTP|through the API|]?",
        "Where do I [send|post] [chat|a chat|chat messages|my messages] [requests|request|to|]?", "What is the chat [endpoint|route|URL|path]?", "chat [endpoint|route|URL|path]?", "[Which|What] URL do I [call|use|post to] [for|to] chat?",
        "How do I [send|make|do] a chat [request|completion|message] [to P|]?", "Where are chat completions served?", "Tell me the chat [completions|] endpoint."]),
    ("completions", "POST /v1/completions.", ["/v1/completions"], [
        "[Which|What] [endpoint|route|URL|path] [is for|serves|handles|does|answers] [plain|raw|text|legacy|plain text] completions?", "What is the [plain|text|raw|legacy|] completions [endpoint|route|URL|path]?",
        "Where do I [send|post] a [raw|plain|text] prompt?", "How do I [complete|continue] [a raw prompt|plain text|text without chat|a prompt without chat]?", "[text|plain|raw] completion [endpoint|route|URL|path]?",
        "[Which|What] endpoint [takes|accepts] a [raw|plain|text] prompt?", "Is there a [plain|text|raw] completions endpoint?"]),
    ("models", "GET /v1/models.", ["/v1/models"], [
        "[Which|What] [endpoint|route|URL|path] [lists|shows|returns|gives] [the|all|available|the available|served] models?", "How do I [list|see|get|show|find] [the|all|available|the available|served] models [over HTTP|]?",
        "[Where|How] can I see [which|what] models are [served|available|loaded|there]?", "[models|model list] [endpoint|route|URL|path]?", "What is the models [endpoint|route|URL|path]?", "Which models does the server offer, and [where|how] do I see them?",
        "How do I know which model [is|was] loaded?", "endpoint to list models"]),
    ("tokenize", "POST /tokenize.", ["/tokenize"], [
        "[Which|What] [endpoint|route|URL|path] [tokenizes|encodes] [text|a text|a string|a prompt]?", "How do I [tokenize|encode|turn] [text|a text|a string|a prompt] [into tokens|into token ids|]?", "How [do|can] I [count|get] the tokens of a [text|prompt|string]?",
        "What is the [tokenize|tokenizer|tokenization] [endpoint|route|URL|path]?", "[tokenize|tokenizer|tokenization] [endpoint|route|URL|path]?", "Where do I get token ids for a [text|prompt|string]?",
        "[Which|What] endpoint [turns|converts] text into tokens?", "How do I see the tokens of a text?"]),
    ("detokenize", "POST /detokenize.", ["/detokenize"], [
        "[Which|What] [endpoint|route|URL|path] [detokenizes|decodes] [tokens|token ids|ids]?", "How do I [detokenize|decode] [tokens|token ids|ids]?", "How [do|can] I [turn|convert] [tokens|token ids|ids] [back|] into [text|a string]?",
        "What is the [detokenize|detokenization] [endpoint|route|URL|path]?", "[detokenize|detokenization] [endpoint|route|URL|path]?", "[Which|What] endpoint [turns|converts] [tokens|token ids|ids] [back|] [into|to] text?", "How do I get [the|] text [of|from] token ids?"]),
    ("health", "GET /health.", ["/health"], [
        "[Which|What] [endpoint|route|URL|path] [reports|shows|tells|gives|checks] [the|] health [of the server|]?", "How do I [check|see|know|test] [that|if|whether] [P|the server] is [healthy|alive and well|ok|fine|up]?", "What is the health [endpoint|route|URL|path|check]?",
        "health [endpoint|route|URL|path|check]?", "How do I check [the server's|Perigee's|the|] health?", "Is there a health [check|endpoint]?", "Where is the health check?"]),
    ("live", "GET /health/live.", ["/health/live"], [
        "[Which|What] [endpoint|route|URL|path] is [for|the] [liveness|the liveness probe|liveness probe|liveness check]?", "What is the [liveness|live] [endpoint|route|URL|path|probe]?", "[liveness|live] [endpoint|probe|check|route]?",
        "[Which|What] URL do I give [Kubernetes|k8s] [for|as] the liveness probe?", "How do I [check|probe|test] [liveness|that the process is alive|that the process lives]?", "Where is the liveness probe?"]),
    ("ready", "GET /health/ready.", ["/health/ready"], [
        "[Which|What] [endpoint|route|URL|path] [is for|tells|reports|shows] [readiness|the readiness probe|that it is ready|if it is ready]?", "What is the [readiness|ready] [endpoint|route|URL|path|probe]?", "[readiness|ready] [endpoint|probe|check|route]?",
        "How do I [know|see|check|tell|test] [if|when|that|whether] [P|the server] is ready [for requests|]?", "[Which|What] URL do I give [Kubernetes|k8s] [for|as] the readiness probe?", "Where is the readiness probe?", "How do I check readiness?"]),
    ("startup", "GET /health/startup.", ["/health/startup"], [
        "[Which|What] [endpoint|route|URL|path] is [for|the] [startup|the startup probe|startup probe|startup check]?", "What is the startup [endpoint|route|URL|path|probe]?", "startup [endpoint|probe|check|route]?",
        "[Which|What] URL do I give [Kubernetes|k8s] [for|as] the startup probe?", "How do I [check|probe|see|know] [if|that|whether] startup [is done|has finished|is complete]?", "Where is the startup probe?", "How do I follow the boot over HTTP?"]),
    ("metrics", "GET /metrics, in Prometheus format.", ["/metrics"], [
        "[Which|What] [endpoint|route|URL|path] [has|gives|serves|exports|exposes|shows] [the|] [metrics|Prometheus metrics|statistics]?", "Where are [the|] [metrics|Prometheus metrics|statistics] [exposed|served|found|]?", "How do I [get|scrape|see|read|collect] [the|] [metrics|Prometheus metrics|statistics]?",
        "[metrics|Prometheus] [endpoint|route|URL|path|format]?", "What is the metrics [endpoint|route|URL|path]?", "How do I [monitor|watch|scrape] P [with Prometheus|]?", "[Which|What] format do the metrics have?", "Does P [support|speak|work with] Prometheus?",
        "Where can Prometheus scrape [P|the server]?"]),
    ("version", "GET /version.", ["/version"], [
        "[Which|What] [endpoint|route|URL|path] [gives|shows|tells|returns|reports] the version?", "How do I [get|see|find|ask for|check] the version [of P|over HTTP|]?", "What is the version [endpoint|route|URL|path]?", "version [endpoint|route|URL|path]?",
        "How do I know which version of P is running?", "Where can I see the [server's|running|] version?", "[Which|What] version [of P|] is this and where do I see it?"]),
    ("batched_tokens", "max_num_batched_tokens is 8192 by default.", ["8192"], [
        "What is the default [of|for|value of] max_num_batched_tokens?", "What is max_num_batched_tokens [by default|set to|]?", "How [large|big|high] is max_num_batched_tokens [by default|]?", "max_num_batched_tokens [default|value|]?",
        "How many tokens [are|can be|may be] [batched|in a batch|in one batch|in a step] [by default|at most|]?", "What is the [default|largest] [batch size|number of batched tokens|token budget] [in tokens|per step|]?", "What value does max_num_batched_tokens have?",
        "How many tokens does one [step|batch] [hold|take|process] by default?"]),
    ("chunked_prefill", "Chunked prefill splits a long prompt over several steps.", ["Chunked prefill"], [
        "What [is|does] chunked prefill [do|]?", "[Does|Can] P [support|do|have|use] chunked prefill?", "How [does P handle|are|does it process] long prompts [handled|processed|]?", "What happens [with|to] [a|] long [prompt|prompts]?",
        "How is a long prompt [processed|handled|prefilled|computed]?", "Explain chunked prefill.", "chunked prefill?", "Why is a prompt split into chunks?", "Is a long prompt computed in one step?"]),
    ("prefix_cache", "The prefix cache reuses the KV blocks of equal prompt beginnings.", ["prefix cache"], [
        "What [is|does] the prefix cache [do|]?", "[Does|Can] P [cache|reuse] [prompts|prefixes|equal prompts|shared prefixes]?", "How are [equal|shared|common|repeated] [prompt beginnings|prefixes|prompts|system prompts] [reused|handled|cached]?", "Explain [the prefix cache|prefix caching].",
        "What is prefix caching?", "Is there a prefix cache?", "prefix cache?", "Does P have [a prefix cache|prefix caching]?", "How does P avoid computing the same prompt twice?"]),
    ("kv_cache", "The KV cache is paged: it is kept in blocks.", ["paged"], [
        "How is the KV cache [organized|kept|stored|laid out|managed|built|organised]?", "What [is|kind of is] the KV cache [like|]?", "Is the KV cache paged?", "[What|Which] [kind|sort|type] of KV cache does P [use|have]?", "KV cache [layout|organization|kind]?",
        "How does P [store|keep|manage|organize] [the KV cache|keys and values]?", "Explain the KV cache.", "How does the KV cache work?", "Tell me about the KV cache."]),
    ("jit_cache", "jit-cache/ keeps compiled kernels; mount it as a volume.", ["compiled kernels"], [
        "What is [jit-cache|the jit-cache|jit-cache/|the jit cache] [for|]?", "What does [jit-cache|the jit-cache|jit-cache/] [keep|hold|contain|do|store]?", "Where are [compiled kernels|the compiled kernels|kernels] [kept|stored|cached|saved]?", "What is in [jit-cache|the jit-cache folder|jit-cache/]?",
        "[Which|What] [folder|directory] [keeps|holds|has|stores] [the|] compiled kernels?", "Why [should I|] mount [jit-cache|the jit-cache] as a volume?", "How do I keep compiled kernels between [runs|restarts|starts]?", "Explain the jit-cache [folder|directory|]."]),
    ("language", "Perigee is written in Rust.", ["Rust"], [
        "[What|Which] [language|programming language] is P [written|programmed|implemented|coded|made] in?", "In [what|which] [language|programming language] is P [written|programmed|implemented|coded]?", "What is P [written|programmed|implemented|coded] in?", "Is P written in [Rust|Python|C++|Go|Java]?",
        "[programming|implementation|source|] language of P?", "Which programming language does P use?", "What language was used to [build|write|make] P?"]),
    ("docker", "Run docker compose up to start the container.", ["docker compose up"], [
        "How do I [run|start|launch|use|bring up] [P|the server|it] [in|with|using|under] [Docker|docker|a container|docker compose|Docker Compose|containers]?", "How do I [start|run|launch|bring up] the [container|Docker container|docker container]?",
        "[Which|What] command [starts|runs|launches] the [container|Docker container|docker container]?", "[Docker|docker|container] command?", "Is there a [container|Docker image|Docker container|compose file]?", "How [do|can] I use docker compose?",
        "Can I run P [in Docker|in a container|with docker]?"]),
    ("sigterm", "On SIGTERM Perigee drains: it finishes running requests, then stops.", ["drain"], [
        "What [happens|does P do] [on|at|after|when it gets|when it receives|upon] [SIGTERM|a SIGTERM|the SIGTERM signal]?", "How does P [handle|react to|treat|respond to] SIGTERM?", "What does SIGTERM do?", "How do I [stop|shut down|end|terminate] [P|the server] [cleanly|gracefully|properly|]?",
        "Which signal [drains|stops] the server?", "What happens [at|on|during] [shutdown|a graceful shutdown]?", "SIGTERM?", "Does P drain on SIGTERM?", "What happens to running requests [when the server stops|on shutdown|at shutdown]?", "Is there a graceful shutdown?"]),
    ("overload", "Overload is answered with 429 and a Retry-After header.", ["429"], [
        "What happens [on|at|under|during|in case of] overload?", "[What|Which] [status|status code|HTTP status|code|answer|HTTP code] [does P give|is returned|is sent|do I get|comes] [on|at|under|during] overload?", "How does P [handle|answer|treat|react to] [overload|too many requests|overloading]?",
        "What [does P do|happens] when [there are|it gets|it has] too many requests?", "What happens [when|if] the [queue|server|request queue] is [full|overloaded|too busy|busy]?", "[overload|too many requests] [status|code|answer|]?", "When do I get [429|a 429]?", "What does [429|status 429|a 429] mean?",
        "What is Retry-After for?"]),
    ("draining", "While draining, new requests get 503.", ["503"], [
        "[What|Which] [status|status code|HTTP status|code|answer] [does P give|is returned|is sent|do I get|do new requests get] [while|when|during] draining?", "What happens [to|with] new requests [while|when] [draining|P is draining|the server is draining|the server drains]?", "When do I get [503|a 503]?",
        "What does [503|status 503|a 503] mean?", "What does a draining server [answer|say|return|reply]?", "draining [status|code|answer|]?", "How does P answer [while|during|when] draining?"]),
    ("nano", "perigee-nano is the embedded model; it needs nothing installed.", ["perigee-nano"], [
        "What is [the|] [embedded|built-in|built in|included|default|bundled] model [called|]?", "What is perigee-nano?", "[Which|What] model is [embedded|built in|included|inside the binary|compiled in|bundled]?", "Is there [a|an] [embedded|built-in|included|tiny|small|bundled] model?",
        "[Which|What] model [needs|runs with] nothing [installed|to install]?", "What is the name of the [embedded|built-in|included|tiny|small|bundled] model?", "[embedded|built-in|bundled] model?", "Which model do I get without a checkpoint?", "Can I try P without [a model|downloading a model|weights|a checkpoint]?",
        "What model runs when I give none?"]),
    ("family", "Perigee serves the Kimi K2 family: MLA attention and mixture of experts.", ["Kimi K2"], [
        "[Which|What] [models|model family|family|family of models|model families] does P [serve|support|run|work with]?", "[Which|What] models [can|does] P [serve|run|support|load]?", "What [kind|sort|type] of models does P [serve|support|run]?", "Does P [serve|support|run] [Kimi|Kimi K2|other models]?",
        "[Which|What] model family is P [for|made for|built for]?", "[supported|served] models?", "[Which|What] architecture do the [models|served models] have?", "What is the Kimi K2 family?", "[Which|What] attention do the models use?", "Can P serve Kimi K2?"]),
    ("licence", "Perigee is under the MIT licence.", ["MIT"], [
        "[What|Which] [licence|license] [does P have|is P under|has P|does P use|applies|is used]?", "What is [the|Perigee's] [licence|license] [of P|]?", "Under [what|which] [licence|license] is P [released|published|available|]?", "How is P [licensed|licenced]?", "[licence|license] [of P|]?",
        "Is P [open source|free software|free to use|MIT licensed]?", "May I use P [commercially|freely|in my product]?", "Tell me the [licence|license] [of P|]."]),
    ("kernels", "The kernels are written in CUDA C++.", ["CUDA C++"], [
        "[What|Which] [language|programming language] are the [kernels|GPU kernels|CUDA kernels] [written|programmed|implemented] in?", "In [what|which] language are the [kernels|GPU kernels] [written|]?", "What are the [kernels|GPU kernels] [written|made|programmed|implemented] in?",
        "How are the [kernels|GPU kernels] written?", "[kernel|kernels|GPU kernel] language?", "Are the kernels [CUDA|written in CUDA|in CUDA|Triton|written in Rust]?", "What kind of kernels does P have?", "What language are the kernels in?"]),
    ("logs", "Logs are written by tracing.", ["tracing"], [
        "[What|Which] [library|crate] [writes|makes|does|produces|is used for] the [logs|logging]?", "How does P [log|write logs|do logging]?", "How are logs [written|made|produced|done]?", "What is used for [logs|logging]?", "[logs|logging] [library|crate|]?", "What makes the logs?",
        "Which logging [library|crate|framework] does P use?", "What does P log with?"]),
    ("cpu", "Yes. The CPU backend runs the same engine, without a GPU.", ["CPU"], [
        "[Does|Can|Will] P [run|work|start] [without a GPU|on a CPU|on the CPU|on CPU only|with no GPU|on a machine without a GPU]?", "Do I need a GPU?", "Is a GPU [needed|required|necessary]?", "What [does|is] the CPU backend [do|]?", "What runs on the CPU?",
        "Is there a CPU backend?", "Which engine does the CPU backend run?", "CPU backend?", "What happens [without a GPU|if there is no GPU|on a machine with no GPU]?", "Can I use P without [a GPU|a graphics card|CUDA]?"]),
    ("what", "Perigee is a server for the Kimi K2 model family, written in Rust.", ["server"], [
        "What is [Perigee|perigee]?", "What does [Perigee|perigee] do?", "[Explain|Describe] [Perigee|perigee].", "Tell me about [Perigee|perigee].", "What is [Perigee|perigee] for?", "What kind of [program|software|tool] is [Perigee|perigee]?", "[Perigee|perigee]?",
        "What's [Perigee|perigee]?", "What can [Perigee|perigee] do?", "Describe [Perigee|perigee] in one sentence."]),
]

# One more way to ask each question, never used in training in any form; reported on its own.
UNSEEN = {
    "start": "With which command is the Perigee server brought to life?", "port": "Unless told otherwise, which port will Perigee be reachable at?",
    "set_port": "I need the server on port 7000, what option do I pass?", "host": "By which flag is the listening address chosen?", "model": "Which flag takes the folder of my checkpoint?",
    "profile": "With what flag do I request a named profile?", "set": "Which command-line flag lets me alter a single key?", "env_config": "Name the environment variable holding the configuration file's path.",
    "env_profile": "Name the environment variable that decides the profile.", "env_setting": "What do environment variables that change a setting look like?", "site_file": "Where would I find the site configuration file?",
    "profiles_dir": "What directory are the profile files in?", "config_show": "Is there a command that prints all settings with their origin?", "config_check": "Which subcommand validates my settings?",
    "config_schema": "How could I obtain a JSON Schema of all settings?", "chat": "What path do chat clients post to?", "completions": "What path serves text completions?", "models": "What path returns the list of models?",
    "tokenize": "Over HTTP, how can text be tokenized?", "detokenize": "Over HTTP, how can token ids be decoded to text?", "health": "What URL should I poll for the server's health?", "live": "Which path should a liveness check call?",
    "ready": "Which path should a readiness check call?", "startup": "Which path should a startup check call?", "metrics": "Where should I point Prometheus?", "version": "What URL reports Perigee's version?",
    "batched_tokens": "Tell me the default for max_num_batched_tokens.", "chunked_prefill": "Could you explain what chunked prefill means?", "prefix_cache": "Could you explain what the prefix cache is good for?", "kv_cache": "In what form is the KV cache held?",
    "jit_cache": "What is stored in the jit-cache directory?", "language": "Which language did they write Perigee in?", "docker": "What do I type to run it in a Docker container?", "sigterm": "If I send SIGTERM, what will the server do?",
    "overload": "Which HTTP code signals overload?", "draining": "Which HTTP code do requests get during a drain?", "nano": "What's the small model inside the binary called?", "family": "Which family of models is Perigee meant to serve?",
    "licence": "Which licence was Perigee published under?", "kernels": "Which language are the GPU kernels in?", "logs": "By what are log lines written?", "cpu": "Will it work on a computer that has no GPU?", "what": "So, what exactly is Perigee?",
}
