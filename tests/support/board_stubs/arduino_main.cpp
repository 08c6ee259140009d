// Runs the sketch for five minutes in which no instance is offloaded, one every 100 ms. Prints the
// numbers of answers, of connects and of calls of the MQTT client's loop. With an argument the
// broker cannot be reached.
#include "arduino.h"
unsigned long clock_ms;
int reading = 1; // the first stage stops
bool is_reachable;
int n_answers, n_connects, n_loops;
SerialPort Serial;

void setup();
void loop();

int main(int n_arguments, char **) {
  is_reachable = n_arguments == 1;
  setup();
  n_loops = 0;
  unsigned long begin = clock_ms;
  for (; clock_ms - begin < 300000; clock_ms += 100)
    loop();
  printf("%d %d %d\n", n_answers, n_connects, n_loops);
}
