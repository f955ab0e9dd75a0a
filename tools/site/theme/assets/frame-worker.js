// The search runs in a Worker, which browsers refuse to pages opened as files: there a hidden frame runs its script.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      this.inside.postMessage = (data) => this.onmessage?.({ data });
      const script = this.inside.document.createElement("script");
      script.src = url;
      this.loaded = new Promise((resolve) => { script.onload = resolve; });
      script.onerror = (event) => this.onerror?.(event);
      this.inside.document.body.append(script);
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.onmessage({ data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
