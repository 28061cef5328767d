// A page that is opened from disk may start no worker, and search is one: here its script runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.srcdoc = "<body></body>"
      frame.onload = () => {
        const inside = frame.contentWindow
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
        const script = inside.document.createElement("script")
        script.src = url
        script.onload = () => {
          this.postMessage = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }))
          this.waiting.forEach(this.postMessage)
        }
        inside.document.body.append(script)
      }
      document.documentElement.append(frame)
    }
    postMessage(data) {
      this.waiting.push(data)
    }
  }
}
